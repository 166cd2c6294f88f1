"""Documents that other servers publish, in JSON and YAML."""

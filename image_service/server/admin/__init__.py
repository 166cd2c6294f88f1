"""The administrative listener: probes, metrics and states of the whole service, and its client."""

"""Images in parts, which a manifest describes: manifests, their XML, and requests to object stores."""

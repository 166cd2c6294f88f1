"""The certificate of TLS listeners: read, checked, reloaded."""

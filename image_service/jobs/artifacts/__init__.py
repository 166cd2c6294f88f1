"""The bytes of composes: base disks, composed images, downloads, provenance."""

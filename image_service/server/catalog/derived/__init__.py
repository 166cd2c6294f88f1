"""Files derived from base images: minimal ISOs and initrds with nmstatectl."""

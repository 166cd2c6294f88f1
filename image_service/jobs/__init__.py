"""Jobs: composes of images for many tenants, in steps that workers and this service carry out."""

"""What both of osbuild-composer's APIs have in common: error objects, OpenAPI documents."""

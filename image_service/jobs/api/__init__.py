"""The common parts of osbuild-composer's two APIs: error objects, OpenAPI documents."""

"""The families of live images: where their boot configurations and configs go."""

"""What people write, translated to what machines read: Butane, and static networks.

The scripts and units in this folder are assisted-service's own, unchanged: internal/constants and
internal/ignition/templates of github.com/openshift/assisted-service, commit
063b257950f726d6b291dc94b806bc243a1b56de, under the Apache License 2.0.
"""

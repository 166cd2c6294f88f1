"""Customizes CoreOS disks: what coreos-installer would have written goes into the boot partition.

`boot_partition` finds and copies it, `boot_edits` tells what must change in it, `ext4_editor` changes the
copy, `patch` compares copy and disk, `disk_writer` writes the difference, `redo_file` protects it in place.
"""

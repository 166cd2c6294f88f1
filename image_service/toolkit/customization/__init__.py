"""Customizes CoreOS disks: writes into the boot partition as coreos-installer would have done.

`boot_partition` finds and copies it, `boot_edits` plans the changes in it, `ext4_editor` changes the
copy, `patch` compares copy and disk, `disk_writer` writes the difference, `redo_file` protects it in place.
"""

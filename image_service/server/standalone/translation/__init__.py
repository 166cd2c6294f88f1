"""What people write, translated to what machines read: Butane, and static networks."""

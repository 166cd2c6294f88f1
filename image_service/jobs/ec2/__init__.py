"""EC2's Query API: signatures, parameters, replies and errors. It knows no tasks."""

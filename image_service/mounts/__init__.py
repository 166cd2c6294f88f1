"""What each client has read of each image, and how far its boot has come: pure."""

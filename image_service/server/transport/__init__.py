"""Connections: the protocol over sockets, its senders (sendfile, TLS, threads), limits and deadlines."""

"""HTTP semantics: RFC 9112 request heads, RFC 9110 ranges, preconditions, responses; no Twisted."""

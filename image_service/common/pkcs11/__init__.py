"""Keys of PKCS#11 tokens: hardware security modules, smart cards, SoftHSM."""

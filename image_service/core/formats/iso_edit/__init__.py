"""Changes of an ISO as overlays of its bytes and a tail behind them: nothing is copied."""

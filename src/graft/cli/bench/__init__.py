"""`graft bench`: models in; how fast Graft and its peers run them, side by side, out."""

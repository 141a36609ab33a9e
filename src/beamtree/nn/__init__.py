"""The neural networks: cells, top-k operators, engines and encoders."""

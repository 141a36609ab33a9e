"""Models: classifiers on top of encoders, trained models with their vocabulary, and their storage."""

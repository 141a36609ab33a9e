"""Models: classifiers over encoders, trained ones with their vocabulary, and how they are stored."""

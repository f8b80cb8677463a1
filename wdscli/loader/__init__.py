"""What training code imports. Comes with the loader; imports no ops, no cli and no torch."""

"""Models; importing this package registers all of them."""

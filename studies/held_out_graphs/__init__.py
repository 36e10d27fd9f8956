"""Does it hold on graphs nobody tuned on? See ``__main__`` for how to make and measure them."""

"""What peers touch: the server that answers them, and what people are told of them."""

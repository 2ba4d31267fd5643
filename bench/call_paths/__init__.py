"""How long the ways through the code are: the functions and files of Asterism that a command or an event passes."""

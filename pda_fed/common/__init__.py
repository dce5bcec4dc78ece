"""What all rooms use: checks of arguments, files, tables, signals."""

"""The parts of `ls` and `cat`: the reader of a set, listings, tables, unpacking, and the quality of a shuffle."""

"""AppWorld: requests of a person that are done on nine apps, by writing Python."""

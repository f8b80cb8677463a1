"""One module a verb: takes both ends as arguments, returns a report, never prints."""

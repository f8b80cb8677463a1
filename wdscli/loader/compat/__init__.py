"""webdataset's names that are no methods of a dataset."""

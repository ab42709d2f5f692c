"""n-gram indexes: their command line, configuration and service around the extension `ngram_index`."""

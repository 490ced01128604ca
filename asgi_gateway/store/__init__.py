"""The store: records of samples and the verbs that change them."""

"""Tables made of records: each source document's own, published beside measured."""

"""What the customers' documents let a reader type, working. One folder per document; README.md has the table."""

"""polydice inside other frameworks, a file for each. Nothing else imports from here, so none of them is needed."""

"""Documents: what people upload, as text with its pages, its tokens, and the chunks it is cut into."""

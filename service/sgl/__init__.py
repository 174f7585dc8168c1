"""Programs written in SGLang's frontend language, run as jobs."""

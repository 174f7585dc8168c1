"""SGLang: its launcher, its profiles and its wire."""

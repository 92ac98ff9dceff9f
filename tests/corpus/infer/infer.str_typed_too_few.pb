
	ident_str*
INPUT0BYTES*Ba

	ident_var*
INPUT0INT64*
"""The libraries that programs import, by the names they import them under."""

LIBRARIES = {
    "common": "arcnb.programs.libraries.barc",  # its names are there without an import
    "dsl": "arcnb.programs.libraries.dsl",
    "rearc_dsl": "arcnb.programs.libraries.rearc_dsl",
}

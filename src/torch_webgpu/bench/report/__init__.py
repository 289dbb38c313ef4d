"""The report: files of the instrument in, one HTML page and one Markdown file out."""

"""Programs in a web page: the folder that a page needs, and the JavaScript that runs it."""

"""What ``scripts/docs`` builds the site with."""

"""What several tests share: tiny streams and backbones, folders of pictures, kills, forgeries."""

"""The products that the shop sells at first."""

from decimal import Decimal
from typing import NamedTuple


class Article(NamedTuple):
    sku: str
    name: str
    category: str
    price: Decimal
    delivered: int


CATALOG = [
    Article(sku, name, category, Decimal(price), delivered)
    for sku, name, category, price, delivered in [
        ("C-101", "Yirgacheffe, washed", "coffee", "14.90", 120),
        ("C-102", "Huehuetenango, honey", "coffee", "13.50", 90),
        ("C-103", "Sumatra Mandheling", "coffee", "12.80", 60),
        ("C-104", "House espresso", "coffee", "11.20", 400),
        ("C-105", "Decaf, sugar cane process", "coffee", "12.40", 80),
        ("C-106", "Kenya AA Nyeri", "coffee", "16.70", 40),
        ("T-201", "Darjeeling first flush", "tea", "18.00", 50),
        ("T-202", "Assam broken leaf", "tea", "7.60", 150),
        ("T-203", "Sencha of the spring", "tea", "12.30", 70),
        ("T-204", "Oolong, twice roasted", "tea", "15.10", 45),
        ("T-205", "Earl Grey", "tea", "6.90", 200),
        ("T-206", "Rooibos with orange", "tea", "5.80", 160),
        ("T-207", "Peppermint, whole leaf", "tea", "4.90", 140),
        ("E-301", "Hand grinder", "equipment", "69.00", 25),
        ("E-302", "Paper filters, 100", "equipment", "4.20", 300),
        ("E-303", "Gooseneck kettle", "equipment", "54.00", 18),
        ("E-304", "Glass dripper", "equipment", "21.50", 35),
        ("E-305", "Cast iron teapot", "equipment", "47.00", 12),
        ("E-306", "Bamboo whisk", "equipment", "13.00", 30),
        ("E-307", "Kitchen scale, 0.1 g", "equipment", "29.90", 22),
    ]
]

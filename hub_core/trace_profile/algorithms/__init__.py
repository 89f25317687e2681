"""Collective profile v1: conversion of the steps of algorithms to trace nodes, and back."""

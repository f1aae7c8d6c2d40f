"""Pictures of a game, drawn with MiniWorld's rooms and textures through headless OpenGL (EGL).

MiniWorld's own environment opens an OpenGL context and two multisampled framebuffers each, keeps the rooms of every
environment under the same display list, and draws after each frame. Here one context and one plain framebuffer serve
all levels of a process, each level has its own display list, and a picture is drawn only when it is asked for.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from typing import Any

import numpy as np

from vmpo.errors import UserError, missing_extra
from vmpo.suites.miniworld_game import Game
from vmpo.suites.miniworld_levels import Level, Shape

FIELD_OF_VIEW = 60.0
"""Vertical, in degrees: at 96 x 72 pixels the horizontal one is 75."""

EYE_HEIGHT = 1.1
WALL_HEIGHT = 2.2

BALL_RADIUS = 0.45
BOX_SIZE = 0.4, 0.8
PILLAR_SIZE = 0.18, 1.8
"""Half the width, and the height. All sizes in metres."""

_SIDES = ((1, 0), (0, -1), (-1, 0), (0, 1))
"""Column and row of the neighbour across each edge of a cell, in the order of a room's outline: east, north, ..."""

_windows: list[Any] = []
"""The window that owns the context: kept, because a window that is collected closes."""


def check_installed() -> None:
    if importlib.util.find_spec("miniworld") is None or importlib.util.find_spec("pyglet") is None:
        raise missing_extra("miniworld", "miniworld")


@functools.cache
def open_context() -> Any:
    """Open this process's OpenGL context and return ``pyglet.gl``."""
    check_installed()
    # Mesa's software renderer: pictures this small are drawn faster without handing them to threads.
    os.environ.setdefault("LP_NUM_THREADS", "0")
    try:
        import pyglet

        pyglet.options["headless"] = True  # before pyglet.gl or pyglet.window is imported
        pyglet.options["debug_gl"] = False
        import pyglet.gl as gl
        import pyglet.window

        _windows.append(pyglet.window.Window(width=1, height=1, visible=False))
    except Exception as error:
        # pyglet's own errors differ by what is missing: a library, a display device, a driver.
        raise UserError(
            f"OpenGL does not start without a screen ({type(error).__name__}: {' '.join(str(error).split())}); "
            "on Debian or Ubuntu: apt install libegl1 libgl1 libglu1-mesa libgl1-mesa-dri"
        ) from error
    gl.glEnable(gl.GL_DEPTH_TEST)
    gl.glEnable(gl.GL_CULL_FACE)
    return gl


class Painter:
    """Draws a level from the agent's eyes. All painters of a process share its context."""

    def __init__(self, level: Level, height: int, width: int) -> None:
        self._gl = open_context()
        self._picture = _framebuffer(height, width)
        rooms = _rooms(level)  # before the list begins, which would otherwise take down how textures are loaded
        self._rooms = self._gl.glGenLists(1)
        self._gl.glNewList(self._rooms, self._gl.GL_COMPILE)
        self._light(level)
        for room in rooms:
            room._render()
        self._gl.glEndList()

    def draw(self, game: Game) -> np.ndarray:
        """An RGB picture ``[H, W, 3]``, fresh."""
        gl, picture = self._gl, self._picture
        picture.bind()
        gl.glClear(gl.GL_COLOR_BUFFER_BIT | gl.GL_DEPTH_BUFFER_BIT)
        gl.glMatrixMode(gl.GL_PROJECTION)
        gl.glLoadIdentity()
        gl.gluPerspective(FIELD_OF_VIEW, picture.width / picture.height, 0.04, 100.0)
        gl.glMatrixMode(gl.GL_MODELVIEW)
        gl.glLoadIdentity()
        gl.glRotatef(-game.pitch, 1.0, 0.0, 0.0)
        # OpenGL looks along -z, which is north, whereas a heading counts from east.
        gl.glRotatef(90.0 - float(np.degrees(game.heading)), 0.0, 1.0, 0.0)
        gl.glTranslatef(-game.x, -EYE_HEIGHT, -game.z)
        gl.glCallList(self._rooms)
        for thing in game.things:
            gl.glPushMatrix()
            gl.glTranslatef(thing.x, 0.0, thing.z)
            gl.glCallList(_look(thing.shape, thing.colour))
            gl.glPopMatrix()
        return picture.read()

    def close(self) -> None:
        self._gl.glDeleteLists(self._rooms, 1)

    def _light(self, level: Level) -> None:
        """A lamp under the ceiling in the middle of the map."""
        gl = self._gl
        middle = (level.cell * len(level.map[0]) / 2, WALL_HEIGHT, level.cell * len(level.map) / 2)
        for name, value in (
            (gl.GL_POSITION, (*middle, 1.0)),
            (gl.GL_AMBIENT, (0.55, 0.55, 0.55, 1.0)),
            (gl.GL_DIFFUSE, (0.6, 0.6, 0.6, 1.0)),
        ):
            gl.glLightfv(gl.GL_LIGHT0, name, (gl.GLfloat * 4)(*value))
        for switch in (gl.GL_LIGHTING, gl.GL_LIGHT0, gl.GL_COLOR_MATERIAL, gl.GL_TEXTURE_2D):
            gl.glEnable(switch)
        gl.glShadeModel(gl.GL_SMOOTH)
        gl.glColorMaterial(gl.GL_FRONT_AND_BACK, gl.GL_AMBIENT_AND_DIFFUSE)


def _rooms(level: Level) -> list[Any]:
    """A MiniWorld room for each cell of floor, open towards its neighbours."""
    from miniworld.miniworld import Room
    from miniworld.params import DEFAULT_PARAMS

    rooms = []
    for row, line in enumerate(level.map):
        for column, letter in enumerate(line):
            if letter == "#":
                continue
            corners = np.array([(1, 1), (1, 0), (0, 0), (0, 1)], np.float64)
            outline = (corners + np.array([column, row])) * level.cell
            room = Room(outline, wall_height=WALL_HEIGHT, wall_tex=level.walls[letter], ceil_tex="concrete")
            for edge, (right, down) in enumerate(_SIDES):
                if level.map[row + down][column + right] != "#":
                    length = float(np.linalg.norm(outline[(edge + 1) % 4] - outline[edge]))
                    room.add_portal(edge, start_pos=0.0, end_pos=length)
            room._gen_static_data(DEFAULT_PARAMS, None)
            rooms.append(room)
    return rooms


@functools.cache
def _look(shape: Shape, colour: str) -> int:
    """The display list of a thing that stands at the origin."""
    from miniworld.entity import COLORS
    from miniworld.opengl import drawBox

    gl = open_context()
    name = gl.glGenLists(1)
    gl.glNewList(name, gl.GL_COMPILE)
    gl.glDisable(gl.GL_TEXTURE_2D)
    gl.glColor3f(*COLORS[colour])
    if shape == "ball":
        # MiniWorld's own ball has 15,576 corners, which take longer to draw than all the rest.
        gl.glTranslatef(0.0, BALL_RADIUS, 0.0)
        sphere = gl.gluNewQuadric()
        gl.gluSphere(sphere, BALL_RADIUS, 16, 12)
        gl.gluDeleteQuadric(sphere)
    else:
        half, height = BOX_SIZE if shape == "box" else PILLAR_SIZE
        drawBox(-half, half, 0.0, height, -half, half)
    gl.glEndList()
    return int(name)


@functools.cache
class _framebuffer:
    """Where pictures of one size are drawn: one sample per pixel, eight bits per colour."""

    def __init__(self, height: int, width: int) -> None:
        self._gl = gl = open_context()
        self.height, self.width = height, width
        self._pixels = np.zeros((height, width, 3), np.uint8)
        self._id = gl.GLuint(0)
        gl.glGenFramebuffers(1, ctypes.byref(self._id))
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, self._id)
        for attachment, content in (
            (gl.GL_COLOR_ATTACHMENT0, gl.GL_RGBA8),
            (gl.GL_DEPTH_ATTACHMENT, gl.GL_DEPTH_COMPONENT24),
        ):
            buffer = gl.GLuint(0)
            gl.glGenRenderbuffers(1, ctypes.byref(buffer))
            gl.glBindRenderbuffer(gl.GL_RENDERBUFFER, buffer)
            gl.glRenderbufferStorage(gl.GL_RENDERBUFFER, content, width, height)
            gl.glFramebufferRenderbuffer(gl.GL_FRAMEBUFFER, attachment, gl.GL_RENDERBUFFER, buffer)
        status = gl.glCheckFramebufferStatus(gl.GL_FRAMEBUFFER)
        if status != gl.GL_FRAMEBUFFER_COMPLETE:
            raise UserError(f"OpenGL cannot draw pictures of {width} x {height} pixels (status {status:#x})")

    def bind(self) -> None:
        self._gl.glBindFramebuffer(self._gl.GL_FRAMEBUFFER, self._id)
        self._gl.glViewport(0, 0, self.width, self.height)

    def read(self) -> np.ndarray:
        """The picture, first row on top."""
        gl = self._gl
        gl.glPixelStorei(gl.GL_PACK_ALIGNMENT, 1)
        pointer = self._pixels.ctypes.data_as(ctypes.POINTER(gl.GLubyte))
        gl.glReadPixels(0, 0, self.width, self.height, gl.GL_RGB, gl.GL_UNSIGNED_BYTE, pointer)
        return self._pixels[::-1].copy()
